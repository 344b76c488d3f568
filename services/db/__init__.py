"""The database: models, sessions, migrations. It is the truth; a queue message only wakes somebody up."""
