-- The tokens a span takes in the view at a pos: its active records and the messages between them.
CREATE FUNCTION compaction_store.span_tokens(p_thread_uid uuid, p_at bigint, p_start bigint, p_end bigint)
RETURNS bigint
LANGUAGE sql STABLE
AS $$
    WITH inside AS (
        SELECT a.start_seq, a.end_seq, a.tokens_after
        FROM compaction_store.active(p_thread_uid, p_at) AS a
        WHERE a.start_seq >= p_start AND a.end_seq <= p_end
    ),
    folded AS (
        SELECT COALESCE(sum(m.tokens), 0) AS tokens
        FROM inside AS i
        JOIN compaction_store.messages AS m
            ON m.thread_uid = p_thread_uid AND m.seq BETWEEN i.start_seq AND i.end_seq
    )
    SELECT (
        (SELECT COALESCE(sum(m.tokens), 0) FROM compaction_store.messages AS m
         WHERE m.thread_uid = p_thread_uid AND m.seq BETWEEN p_start AND p_end)
        - (SELECT f.tokens FROM folded AS f)
        + (SELECT COALESCE(sum(i.tokens_after), 0) FROM inside AS i)
    )::bigint
$$;
