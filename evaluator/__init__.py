"""The referee: takes a task and a candidate, returns a verdict. Depends on no web framework, database or LLM."""
