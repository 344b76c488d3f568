"""Fine-tuning of the proposing model from the referee's verdicts.

Not built yet: this package holds its place in the import order (`evaluator` <- `agent` <- `rl`) and nothing
else. Nothing in the project may claim a fine-tuned model until this text says otherwise.
"""
