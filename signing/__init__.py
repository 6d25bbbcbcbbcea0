"""The trust of a bundle: container, DSSE envelope, in-toto statement, root and roles, and the store that reads them.

Bytes go in; a verified bundle comes out, or `signing.refusal.Refused` is raised. There is no boolean in between.
Only `signing.store` does I/O; everything else is pure, and the time is always an argument.
"""
