"""The rules, one module per topic. Each function with `@rule` in a module of this package is a rule."""
