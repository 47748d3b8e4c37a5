"""scx: a BPF scheduler of ours dispatches the operator threads."""
