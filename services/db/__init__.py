"""The database: models, sessions, migrations. It is the source of truth; a queue message only wakes a worker."""
