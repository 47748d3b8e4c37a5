"""The running controller: loop, rules, engines, socket, and what it shows of itself."""
