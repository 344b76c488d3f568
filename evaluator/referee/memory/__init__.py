"""What a GPU's memory is divided into, and the referee's own work there."""
