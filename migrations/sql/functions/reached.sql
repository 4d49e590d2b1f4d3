-- The records that may repeat what some messages say, whatever became of them, and those that were made from such records.
-- A record may repeat its span. One that has none, or whose inputs have a 0, may repeat anything before it; so may what
-- was observed from its start on, because one of the messages up to the record told of it.
CREATE FUNCTION compaction_store.reached(p_thread_uid uuid, p_seqs int8multirange) RETURNS int8multirange
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE log AS MATERIALIZED (
        SELECT
            c.number, c.inputs,
            CASE
                WHEN c.start_seq IS NULL OR 0 = ANY (c.inputs)
                    THEN pg_catalog.int8range(1, compaction_store.seq_at(p_thread_uid, c.pos), '[]')
                WHEN c.outcome = 'observed'
                    THEN pg_catalog.int8range(c.start_seq, compaction_store.seq_at(p_thread_uid, c.pos), '[]')
                ELSE pg_catalog.int8range(c.start_seq, c.end_seq, '[]')
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
