"""The definitions of the MCP server's own tools. The recall tools, which it offers too, are defined in `recall`."""

from __future__ import annotations

from compaction_store.recall.definitions import IntegerField, TextField, Tool

_MOST = 50
THREAD = TextField("The name of the conversation's thread, as list_threads returns it.", 255)
_SEQ = IntegerField("The seq of the message: its number in the conversation.")
OWN = (
    Tool(
        "list_threads",
        "List the stored conversations (threads) by name. Returns JSON: `threads` lists them with `thread_id`, the"
        " numbers of `messages` and compaction `records`, the `tokens` of the present view, and the time of the last"
        " change. If `next` is present, there is more: call again with its arguments.",
        {
            "after": TextField("List the threads after this name.", 255),
            "limit": IntegerField("The maximum number of threads. Default: 20.", 1, _MOST),
        },
    ),
    Tool(
        "list_compactions",
        "List compaction records, newest first, of one thread or of all threads. Each record says which messages were"
        " replaced in the view, when, by whom, with which model, and with which `outcome`: applied, rejected, failed or"
        " observed."
        " Summaries are not in the list: recall_describe returns them. If `next` is present, there is more: call again"
        " with the same arguments and those in `next`.",
        {
            "thread_id": THREAD._replace(description="Only records of this thread. Default: of all threads."),
            "outcome": TextField("Only records with this outcome: applied, rejected, failed or observed.", 64),
            "kind": TextField("Only records of this kind, such as summary or revocation.", 64),
            "actor": TextField("Only records of this actor.", 255),
            "limit": IntegerField("The maximum number of records. Default: 20.", 1, _MOST),
            "after_thread": TextField("With after_record: continue after that record of this thread.", 255),
            "after_record": IntegerField("Continue after this record of after_thread."),
        },
    ),
    Tool(
        "explain_message",
        "Explain what happened to one message: whether the present view has it or a compaction record replaces it,"
        " every record that ever covered it, whether it was erased, and, for a reply, which request it answers.",
        {"thread_id": THREAD, "seq": _SEQ},
        ("thread_id", "seq"),
    ),
    Tool(
        "seen_by_reply",
        "Show the view that the model was sent when it wrote a reply. Returns JSON: `evidence` is proved if the reply's"
        " receipt proves this view, reconstructed if there is no receipt, and differs if the receipt does not match."
        " `elements` lists the parts of the view: messages by seq, and compaction records with the range of seqs that"
        " each replaced. recall_expand returns the messages themselves. If `next` is present, there is more: call again"
        " with the same arguments and those in `next`.",
        {
            "thread_id": THREAD,
            "seq": _SEQ._replace(description="The seq of the reply."),
            "after_seq": IntegerField("List only elements after this seq.", 0),
        },
        ("thread_id", "seq"),
    ),
)
