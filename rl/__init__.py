"""Fine-tuning of the proposing model from the referee's verdicts: `python -m rl.train` (docs/training-runs.md).

Three stages (`stages`) learn from verified rows (`rows`), from their own accepted samples, and by GRPO from rewards of the referee
(`reward`, `fleet`, `judges`) with scored exemplars in the prompt (`exemplars`, `prompts`). What a candidate that cheats teaches is in
`hacks`; what a killed run needs to go on is in `checkpoints`, `journal` and `verdicts`.

Trained so far are models of some thousand weights, without a GPU, in tests: nothing in the project may claim more until this text does.

It reaches a service over HTTP alone, through `services.client`, or judges with referees of its own machine.
"""
