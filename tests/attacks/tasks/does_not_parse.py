# expects: task_rejected does not parse
class Model(
