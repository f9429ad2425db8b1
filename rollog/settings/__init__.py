"""Every setting of the product: sections, where values come from, where each may change, the reference page."""
