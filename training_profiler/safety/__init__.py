"""Running our own work so that a failure disables one part; background threads; opening files of others. Never: wait
for a pipe, follow a link in a folder of others.
"""
