"""The dialect: its tasks, the programs that its grammar has, and the tokenizer that writes them."""
