"""Never comes back from its import."""

# expects: timeout
while True:
    pass
