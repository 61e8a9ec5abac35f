"""What a terminal shows after a text that was written to it."""


def shown(text: str) -> list[str]:
    """Return the lines of a terminal that knows ends of lines, returns to their begin, and erasing to their end."""
    lines, column = [""], 0
    while text:
        if text.startswith("\x1b[K"):
            lines[-1], text = lines[-1][:column], text[3:]
            continue
        character, text = text[0], text[1:]
        if character == "\n":
            lines.append("")
        elif character == "\r":
            column = 0
        else:
            lines[-1] = lines[-1][:column] + character + lines[-1][column + 1 :]
            column += 1
    return lines
