"""The demo's thread, made up for it: an agent that mends a bookshop's order service, one ticket after the other.

Always the same messages, in the format of OpenAI's chat: tool calls with their results, and a reply at the end of each
turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from compaction_store.models import Payload


class Ticket(NamedTuple):
    number: int
    ask: str
    module: str
    function: str
    symptom: str
    suspicion: str
    cause: str
    fix: str
    question: str
    answer: str


class Turn(NamedTuple):
    """The messages that lead to a reply, and the reply."""

    messages: list[Payload]
    reply: Payload


SYSTEM = (
    "You keep the order service of a bookshop in good repair. Work on one ticket at a time: reproduce, find the cause,"
    " mend it, prove it with a test. Never touch the production database. Say plainly what you did not check."
)

TICKETS = (
    Ticket(
        2101,
        "Customers write that the confirmation of an order comes twice, always within a minute. Please find out why.",
        "orders/confirm.py", "send_confirmation", "two sends with the same order_id, 31 s apart",
        "the queue's visibility timeout may be shorter than the mail server's answer",
        "the worker acknowledges the job only after the mail server has answered, and the queue hands it"
        " out again after"
        " 30 s", "the send is recorded under the order's number before the mail leaves, and a second one is dropped",
        "Can an order now be left without any confirmation?",
        "Yes, in one case: if the worker dies between the record and the send. A sweep every ten minutes finds records"
        " without a send and sends them; that is tested with a worker that is killed.",
    ),
    Ticket(
        2107,
        "Some invoices are off by one cent against the basket. The accountant sent three: 88120, 88177 and 88203.",
        "billing/invoice.py", "line_total", "basket 41.97, invoice 41.98 for order 88120",
        "rounding per line and rounding of the sum do not agree",
        "the invoice rounds each line half up, the basket rounds the sum half to even",
        "both use one function that keeps tenths of a cent and rounds the sum once, half up",
        "What happens to the three invoices that are already out?",
        "Nothing by itself: they are numbered documents. I wrote a note for the accountant with the differences, 88120:"
        " +0.01, 88177: +0.01, 88203: -0.01, so that she can issue corrections.",
    ),
    Ticket(
        2110,
        "The search finds 'Jose' but not 'José' when the customer types the accent. It should find both with either.",
        "catalogue/search.py", "normalise", "query 'José' returns 0 rows, 'Jose' returns 14",
        "the index is folded, the query is not",
        "titles are stripped of accents when they are indexed, and the query is lower-cased only",
        "the query goes through the same folding as the titles, and keeps the original for ranking",
        "Does that change how Turkish titles are found?",
        "Yes, for the better: the dotless i was folded to i on one side only. I added six Turkish titles to"
        " the test. I did"
        " not check Greek.",
    ),
    Ticket(
        2114,
        "Since Monday the nightly stock import takes three hours instead of twenty minutes. Nothing was released.",
        "stock/import_feed.py", "upsert_items", "184,220 rows, 61 rows/s since 2026-03-02, 1,020 rows/s before",
        "the table lost an index, or its statistics are stale",
        "the supplier now sends ISBN-13 with hyphens, so that the lookup by isbn no longer uses the index and scans",
        "the ISBN is normalised when the feed is read, before the lookup",
        "Did the hyphens put double entries into the stock?",
        "Yes, 212 titles stand twice. I did not delete any: the script stock/merge_doubles.py lists them"
        " and merges with"
        " --apply, for somebody to look at first.",
    ),
    Ticket(
        2119,
        "A customer could open somebody else's order by changing the number in the address. Urgent, please.",
        "web/orders.py", "order_page", "GET /orders/88231 as customer 5512 answers 200, the order is of customer 4090",
        "the check of the owner is missing on one of two routes",
        "the printable version has a route of its own, which checks that somebody is logged in and not who",
        "both routes load the order through one function that takes the customer, and answer 404 for a stranger's",
        "Can we tell whether anybody did that?",
        "From the access log: 9 requests for printable orders by other customers since January, all from one address,"
        " 203.0.113.24, all on 14 February. The list is in the ticket.",
    ),
    Ticket(
        2123,
        "Gift vouchers can be used twice if one is quick with two windows. Reported by our own shop assistant.",
        "billing/voucher.py", "redeem", "voucher GV-7741-QX redeemed at 10:02:11.204 and 10:02:11.260",
        "the balance is read and written in two statements",
        "two requests read the balance of 25.00 before either has written, and both succeed",
        "the balance is lowered by one conditional update, and the request fails if no row was changed",
        "Does a cancelled order give the voucher's money back?",
        "It did, and still does; the cancellation goes through the same function now. The test runs forty"
        " redemptions at"
        " once and exactly one wins.",
    ),
    Ticket(
        2126,
        "The parcel service has changed its interface: labels fail with 'unknown field street2' since this morning.",
        "shipping/labels.py", "label_request", "HTTP 422 from labels.parcel.example: unknown field street2",
        "they renamed a field of the address without a new version",
        "version 3 of their interface takes address lines as a list; our client sends no version and got moved to it",
        "the client asks for version 3 by name and sends the lines as a list",
        "How many parcels are waiting?",
        "37 orders since 06:12. I queued their labels again and 37 came back; the last was order 88317 at 09:48.",
    ),
    Ticket(
        2131,
        "Please make the export for the tax office: all invoices of 2025 with their tax rates, as they want it.",
        "billing/export.py", "tax_export", "no such export; the office wants one line an item, amounts with a comma",
        "books at 7 %, other goods at 19 %, and shipping follows the larger part",
        "nothing was wrong: it was never written",
        "a new export by item with the rate at the day of the invoice, checked against the sums of the ledger",
        "Do the sums agree with the ledger?",
        "To the cent for eleven months. November differs by 14.90: invoice 86044 was booked twice by hand."
        " I left it as it"
        " is and told the accountant.",
    ),
    Ticket(
        2136,
        "Our newsletter went to 300 people who had unsubscribed. That must never happen again.",
        "mail/newsletter.py", "recipients", "311 recipients with unsubscribed_at before the send",
        "the list is cached for longer than a day",
        "recipients are read from a copy of the customers that is refreshed on Sundays, and the send was on a Saturday",
        "the recipients are read from the customers themselves, and each address is looked at again just"
        " before its mail",
        "Should we write to the 311?",
        "That is for the shop to decide. I prepared the list and a draft of an apology in three sentences;"
        " nothing is sent.",
    ),
    Ticket(
        2140,
        "The page of a series shows volumes in the order 1, 10, 11, 2. Small thing, but it looks silly.",
        "catalogue/series.py", "volumes", "order: 1, 10, 11, 12, 2, 3",
        "volume numbers are text",
        "the volume is a text column, because there is a 7a and a volume called 'Register'",
        "they are sorted by the number they begin with, then by the rest; names without a number come last",
        "Where does 7a go now?",
        "Between 7 and 8, and 'Register' is the last. The test has the whole of the series it was reported for.",
    ),
    Ticket(
        2144,
        "Payments by card fail for about one customer in fifty, with 'try again later'. It works the second time.",
        "billing/card.py", "authorise", "2.1 % of authorisations end after exactly 3.0 s",
        "our timeout is shorter than the bank's check",
        "the bank asks some customers to confirm on their phone, which takes 4 to 20 s, and our client"
        " gives up after 3",
        "the timeout is 45 s, the page shows that the phone should be looked at, and one key makes a repetition safe",
        "Was anybody charged twice?",
        "Two customers: authorisations A-55120 and A-55178 were captured and repeated. Both are listed for"
        " a refund; I did"
        " not refund them myself.",
    ),
    Ticket(
        2149,
        "Can the service tell us when something like the stock import becomes slow, before we notice it ourselves?",
        "ops/watch.py", "rates", "no alert was raised in the week of 2 March",
        "rates are written to the log and nobody reads them",
        "the jobs report that they ended, and not how fast they were",
        "every job writes its rate, and a job below a third of its usual rate raises an alert once a day",
        "Would it have caught the import?",
        "Yes, on the first night: 61 rows a second against a usual 1,020. I ran it over the last six"
        " months: it would have"
        " raised three alerts, all of them real.",
    ),
)  # fmt: skip


def thread() -> Iterator[Turn]:
    """Two turns a ticket: the work, and a question on it."""
    before: list[Payload] = [{"role": "system", "content": SYSTEM}]
    for at, ticket in enumerate(TICKETS):
        messages = [*before, {"role": "user", "content": f"Ticket {ticket.number}. {ticket.ask}"}, *_work(at, ticket)]
        yield Turn(messages, {"role": "assistant", "content": _report(ticket)})
        question: Payload = {"role": "user", "content": ticket.question}
        yield Turn([question], {"role": "assistant", "content": ticket.answer})
        before = []


def _work(at: int, ticket: Ticket) -> Iterator[Payload]:
    name = ticket.function
    path = ticket.module
    # (what the assistant says, the tool, its arguments, the result)
    calls = (
        (f"I begin with where {name} is used.", "search", {"pattern": name}, _found(at, ticket)),
        ("", "read_file", {"path": path}, _source(at, ticket)),
        ("Now what the log says.", "read_log", {"service": path.partition("/")[0], "lines": 24}, _log(at, ticket)),
        (
            f"{_sentence(ticket.symptom)} My guess is that {ticket.suspicion}. I write that down as a test first.",
            "run_tests", {"path": f"tests/{path.replace('/', '_')}"}, _tests(at, ticket, failing=1),
        ),
        (
            f"Reproduced. The cause is another matter than the symptom: {ticket.cause}.",
            "edit_file", {"path": path, "function": name}, f"{path}: 1 function changed, +{14 + at} -{6 + at % 5}",
        ),
        ("", "run_tests", {"path": "tests"}, _tests(at, ticket, failing=0)),
        ("", "commit", {"message": f"{ticket.number}: {ticket.fix}"}, f"[main {_hash(at)}] 2 files changed"),
    )  # fmt: skip
    for number, (says, tool, arguments, result) in enumerate(calls, 1):
        call = f"call_{ticket.number}_{number}"
        function = {"name": tool, "arguments": json.dumps(arguments)}
        asked = {"id": call, "type": "function", "function": function}
        yield {"role": "assistant", "content": says or None, "tool_calls": [asked]}
        yield {"role": "tool", "tool_call_id": call, "content": result}


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _report(ticket: Ticket) -> str:
    return (
        f"Ticket {ticket.number} is done. What was seen: {ticket.symptom}. The cause: {ticket.cause}. What I changed,"
        f" in {ticket.module}: {ticket.fix}. A test that failed before passes now, and so do all others."
    )


def _hash(at: int) -> str:
    return f"{(at + 3) * 0x9E3779B1 & 0xFFFFFFF:07x}"


def _found(at: int, ticket: Ticket) -> str:
    folder = ticket.module.partition("/")[0]
    places = [
        f"{ticket.module}:{41 + 3 * at}: def {ticket.function}(",
        f"{folder}/jobs.py:{112 + at}:     {ticket.function}(job.payload)",
        f"{folder}/views.py:{67 + 2 * at}:     result = {ticket.function}(request.state)",
        f"tests/{ticket.module.replace('/', '_')}:{12 + at}: from {folder} import {ticket.function}",
    ]
    return "\n".join(places)


_SOURCE = '''\
"""{title}"""

import logging
from datetime import timedelta

log = logging.getLogger(__name__)
LIMIT = timedelta(seconds={limit})


def {name}(state, *, retry=False):
    row = state.load()
    if row is None:
        log.warning("{name}: nothing to do for %s", state.id)
        return None
    started = state.clock()
    for item in row.items:
        value = state.convert(item, keep=not retry)
        if value is None and not retry:
            state.skipped.append(item.id)
            continue
        state.put(item.id, value)
    took = state.clock() - started
    if took > LIMIT:
        log.info("{name}: slow, %s items in %s", len(row.items), took)
    state.acknowledge(row)
    return row'''


def _source(at: int, ticket: Ticket) -> str:
    title = _sentence(ticket.module.rpartition("/")[2].removesuffix(".py") + " of the order service")
    text = _SOURCE.format(title=title, limit=30 + at, name=ticket.function)
    return "\n".join(f"{number:>4}  {line}" for number, line in enumerate(text.splitlines(), 30 + at))


def _log(at: int, ticket: Ticket) -> str:
    lines = []
    for number in range(24):
        minute, second = divmod(at * 97 + number * 37, 60)
        order = 88100 + at * 23 + number * 3
        took = 18 + (number * 31 + at * 7) % 240
        what = ticket.symptom if number in (9, 17) else f"order={order} items={1 + number % 5} took={took}ms ok"
        lines.append(
            f"2026-03-0{1 + at % 9} {9 + minute // 60:02}:{minute % 60:02}:{second:02} {ticket.function} {what}"
        )
    return "\n".join(lines)


def _tests(at: int, ticket: Ticket, *, failing: int) -> str:
    name = f"test_{ticket.function}"
    count = 218 + at
    if not failing:
        return f"{count} passed in {21.4 + at / 7:.1f} s"
    return (
        f"FAILED {name}_{ticket.number}\n    expected: {ticket.fix}\n    got: {ticket.symptom}\n"
        f"1 failed, {11 + at} passed in {1.2 + at / 9:.1f} s"
    )
