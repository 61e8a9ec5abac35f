"""Changes that are tried on an unedited program: how each is applied, what it brings, and its edit. Never: touch a
file of the user, call a gain what fresh trainings do not show again.
"""
