"""One model alone: the time of each module. Never: take part in a training, leave a hook or a changed value."""
