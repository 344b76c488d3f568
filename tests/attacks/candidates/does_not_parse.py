# expects: contract_violation
class ModelNew(
