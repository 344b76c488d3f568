"""Where a task's time goes and what holds it back; and what this machine reaches at best, measured."""
