"""Every setting of the product: sections, where values come from, where each may change, the reference page.

To add a setting, declare it once, in the section it belongs to: `run.py` (run, broker, model, weights, metrics,
supervision), `groups.py` (groups, freshness), `generation.py` (data, sampling, evaluation, reward, dispatch, rollout)
or `training.py` (algorithm, optimizer, trainer). Give it type, scope and default, and below a docstring with unit and
effect:

    epsilon: Annotated[float, Field(gt=0), AMENDABLE, WEIGHTS] = 1e-8

`section.py` explains the scopes; a key without one cannot be declared. File, environment, `--set`, manifest, what
`resume` takes and the reference page follow from the declaration; write the page anew (`reference.py` says how). The
stage that acts on the key reads it from its section. An amendable key also needs an entry in
tests/integration/test_amendable_settings.py, which changes it on a running trainer.
"""
