"""What the engine's tests share: an engine moved by hand, held sessions, a proxy that can be cut, plans, processes."""
