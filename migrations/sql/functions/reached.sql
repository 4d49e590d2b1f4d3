-- The records that may repeat what some messages say, whatever became of them: those whose span holds one of the
-- messages, those of which such a message itself tells, and those that were made from records like these.
CREATE FUNCTION compaction_store.reached(p_thread_uid uuid, p_seqs int8multirange) RETURNS int8multirange
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE log AS MATERIALIZED (
        SELECT
            c.number, c.inputs,
            CASE
                WHEN c.outcome <> 'observed' AND c.start_seq IS NOT NULL
                    THEN pg_catalog.int8range(c.start_seq, c.end_seq, '[]')
                -- What a provider did before a message is told by that message.
                WHEN c.outcome = 'observed' AND c.start_seq IS NOT NULL
                    THEN pg_catalog.int8range(c.start_seq, c.end_seq + 1, '[]')
                WHEN c.outcome = 'observed' THEN compaction_store.told_by(p_thread_uid, c.pos)
            END AS of
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NULL AND c.number <= (
            SELECT h.last_number FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid
        )
    ),
    made (number, input) AS MATERIALIZED (
        SELECT l.number, i.input FROM log AS l CROSS JOIN LATERAL pg_catalog.unnest(l.inputs) AS i (input)
    ),
    reached (number) AS (
        SELECT l.number FROM log AS l WHERE l.of && p_seqs
        UNION
        SELECT m.number FROM reached AS r JOIN made AS m ON m.input = r.number
    )
    SELECT COALESCE(pg_catalog.range_agg(pg_catalog.int8range(r.number, r.number, '[]')), '{}') FROM reached AS r
$$;
