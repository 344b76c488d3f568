"""Fine-tuning of the proposing model from the referee's verdicts: `python -m rl.train` (docs/training-runs.md).

Three stages (`stages`) learn from verified rows (`rows`), from their own accepted samples, and by GRPO from rewards of the referee
(`reward`, `fleet`, `judges`) with scored exemplars in the prompt (`exemplars`, `prompts`). `hacks` records cheating candidates;
`checkpoints`, `journal` and `verdicts` hold what a killed run needs to resume.

So far only models of some thousand weights have been trained, in tests without a GPU; the project must not claim more until this text does.

It reaches a service only over HTTP, through `services.client`, or judges with local referees.
"""
