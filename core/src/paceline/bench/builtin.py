"""The built-in prompts: four kinds that differ in how much of the output stands in the prompt already."""

from __future__ import annotations

__all__ = ["BUILT_IN"]

_CHAT = (
    "What should I see in Lisbon in two days? Answer as a short plan.",
    "Explain to a ten-year-old why the moon has phases.",
    "My flatmate plays music at night. Write a friendly message that asks for quiet after eleven.",
    "Compare tea and coffee as a morning drink in a few paragraphs.",
)

_CODE_EDITING = (
    "Rename the variable total to result in this function and show the whole function:\n\n"
    "def mean(values):\n    total = 0\n    for value in values:\n        total = total + value\n"
    "    total = total / len(values)\n    return total",
    "Add a docstring to each method and show the whole class:\n\n"
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    "        self.items.append(item)\n\n    def pop(self):\n        if not self.items:\n"
    '            raise IndexError("pop from an empty stack")\n        return self.items.pop()\n\n'
    "    def peek(self):\n        return self.items[-1]\n\n    def __len__(self):\n        return len(self.items)",
    "Change this function so that it also returns the index of the largest value. Show the whole function:\n\n"
    "def largest(values):\n    best = values[0]\n    for value in values:\n        if value > best:\n"
    "            best = value\n    return best",
    "Replace print by logging.info in this code and show all of it:\n\n"
    'import time\n\ndef run(jobs):\n    print("starting", len(jobs), "jobs")\n    for job in jobs:\n'
    '        started = time.time()\n        print("running", job.name)\n        job.run()\n'
    '        print("finished", job.name, "after", time.time() - started)\n    print("all jobs finished")',
)

_JSON = (
    "Turn this table into a JSON list of objects with the keys name, city and age:\n\n"
    "name | city | age\nAnna | Berlin | 31\nBoris | Sofia | 45\nChen | Taipei | 28\nDiana | Madrid | 39",
    "Return this configuration unchanged but with port set to 9090:\n\n"
    '{"server": {"host": "localhost", "port": 8080, "workers": 4}, "logging": {"level": "info", "file": '
    '"server.log"}, "database": {"host": "localhost", "port": 5432, "name": "orders"}}',
    "Write the following orders as JSON with the keys order, item, quantity and price:\n\n"
    "Order 1001: 3 notebooks at 2.50 each. Order 1002: 1 lamp at 19.90 each. Order 1003: 12 pencils at 0.40 each. "
    "Order 1004: 2 chairs at 45.00 each.",
    'Add the key "active" with the value true to each object and return the whole list:\n\n'
    '[{"id": 1, "name": "alpha", "role": "admin"}, {"id": 2, "name": "beta", "role": "editor"}, '
    '{"id": 3, "name": "gamma", "role": "viewer"}, {"id": 4, "name": "delta", "role": "viewer"}]',
)

_SUMMARY = (
    "Summarize the following text in three sentences:\n\n"
    "The town library reopened on Monday after two years of repairs. The roof, which had leaked since the storm of "
    "2019, was replaced, and the reading room on the first floor was given new windows and lamps. The library now has "
    "a room for children with four hundred new books, paid for by donations from the town's shops. The director said "
    "that more than nine hundred people came on the first day, three times as many as on a usual Monday. The library "
    "is open from ten to eight on weekdays and from ten to four on Saturdays.",
    "Summarize the following report as a short list of its main points:\n\n"
    "The bakery sold 14,200 loaves of bread in May, eight percent more than in April. Most of the growth came from "
    "the new rye bread, of which 2,900 loaves were sold. Sales of white bread fell by three percent. The price of "
    "flour rose by five percent, and the price of energy stayed the same. The bakery plans to raise the price of white "
    "bread by ten cents in July and to leave the price of rye bread as it is.",
    "Write a summary of this meeting, with what was decided:\n\n"
    "The team met on Thursday to talk about the new website. Maria showed the first draft of the home page. Tom said "
    "that the pictures take too long to load on a phone. Maria will make the pictures smaller by next Tuesday. Li "
    "asked whether the old addresses will go on working. The team decided that the old addresses will lead to the new "
    "pages for at least one year. Tom will test the new pages on three phones and two computers before the launch on "
    "the first of March.",
    "Summarize this article and keep the numbers:\n\n"
    "A group of researchers followed 1,200 households in a mountain valley for ten years. In the first five years the "
    "households used 180 litres of water per day on average. In 2016 the valley put a price on each litre above 100 "
    "litres per day. In the following five years the households used 140 litres per day on average. Households with "
    "gardens saved the most: they went from 260 to 170 litres per day. The researchers say that the price explains "
    "about two thirds of the savings, and that two wet summers explain the rest.",
)

BUILT_IN: dict[str, tuple[str, ...]] = {
    "chat": _CHAT,
    "code editing": _CODE_EDITING,
    "JSON": _JSON,
    "summary": _SUMMARY,
}
