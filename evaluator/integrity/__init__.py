"""Explains a correct candidate's win and what really ran. The explanations never decide the verdict."""
