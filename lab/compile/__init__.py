"""From a spec.toml to an unsigned bundle: capture, check, link, pack (DESIGN §9)."""
