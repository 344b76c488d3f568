"""Fine-tuning of the proposing model from the referee's verdicts.

Built so far, and tested without a GPU: settings (`config`), the exemplar database (`exemplars`), the contrastive prompt (`prompts`),
rewards (`reward`), the database of hacks (`hacks`), and the evaluators as a reward function (`fleet`, `judges`). No model has been
trained with them: there is no `train.py` yet, and nothing in the project may claim a fine-tuned model until this text says otherwise.

It reaches a service over HTTP alone, through `services.client`, or judges with referees of its own machine.
"""
