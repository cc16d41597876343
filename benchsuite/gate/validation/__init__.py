"""How often the gate is wrong: the launches that are made, and the comparisons that are drawn from them."""
