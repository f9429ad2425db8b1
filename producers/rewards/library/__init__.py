"""Ready rewards: named in the configuration (`rollog/settings/named_rewards.py`), described in docs/rewards.md.

catalogue.py     which function a name means      extraction.py  the answer in a response, the right one in a row
mathematics.py   `math`                           texts.py       `exact`, `numeric`, `format`
lengths.py       `length`                         judge.py       `judge`

To add one: declare a class with its options in `rollog/settings/named_rewards.py`, write a module here with a function
that takes the options and returns a reward function, add a line to the table in `catalogue.py`, and a row to the page.
A reward function is called as function(prompt, response, **fields of the row), plain where it computes and `async def`
where it waits (`waits` of its class). What it needs beyond the base installation is imported when it is made, and
raises DataError with the extra to install.
"""
