"""Tasks and candidates that once got the wrong answer, and tests that they get the right one."""
