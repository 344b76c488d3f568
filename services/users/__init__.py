"""Who may ask for what: users, their keys and quotas, logins, rate limits, and the log of who did what."""
