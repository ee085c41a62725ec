"""Do the ranks of this machine reach each other, do they agree on what they send, and how fast is it?"""
