"""What the first steps show, such as a frozen or a repeated forward pass: one file each; FLOPs. Never: cost a later
step anything, keep what it looked at.
"""
