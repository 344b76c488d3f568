"""Language model providers: one file per kind of API."""
