"""A card is a picture whose bars are in proportion, and whose texts are data."""

from xml.etree import ElementTree

from training_profiler.reports.card import WIDTH, render_card

SVG = "{http://www.w3.org/2000/svg}"


def texts(card):
    return [each.text for each in ElementTree.fromstring(card).iter(f"{SVG}text")]


def bars(card):
    found = ElementTree.fromstring(card).iter(f"{SVG}rect")
    return [int(each.get("width")) for each in found if each.get("class") in ("bar", "after")]


def test_a_card_has_the_headline_a_bar_for_each_time_and_the_facts():
    card = render_card("FASTER: a step takes 25.0% less", [("as it is", 0.04), ("fix.diff", 0.03)], ["on train.py", ""])
    assert texts(card)[0] == "FASTER: a step takes 25.0% less"
    assert texts(card)[1:] == ["as it is", "40.0 ms", "fix.diff", "30.0 ms", "on train.py"]
    before, after = bars(card)
    assert abs(after / before - 0.75) < 0.01
    assert before < WIDTH
    assert bars(render_card("nothing", [], [])) == []


def test_texts_of_a_program_are_no_markup_and_fit():
    card = render_card("<script>\x1b[31m" + "word " * 40, [("a" * 99, 1.0), ("b", 0.0)], ["<b>&" + "fact " * 60])
    assert "<script" not in card
    assert max(map(len, texts(card))) < 85
    assert all(text.isprintable() for text in texts(card))
