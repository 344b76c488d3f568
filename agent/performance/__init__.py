"""How long, at what power and at what price a member of a portfolio runs at a shape that nobody measured."""
