"""The referee: takes a task and a candidate, returns a verdict. Knows no web, no database and no LLM."""
