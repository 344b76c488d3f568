"""Access control: users, keys, quotas, logins, rate limits, and the audit log."""
