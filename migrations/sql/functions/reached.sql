-- The records that may repeat what some messages say, whatever became of them: those whose span holds one of the
-- messages, those of which such a message itself tells, and those that were made from records like these.
CREATE FUNCTION compaction_store.reached(p_thread_uid uuid, p_seqs int8multirange) RETURNS int8multirange
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE log AS MATERIALIZED (
        SELECT c.number, c.pos, c.outcome, c.start_seq, c.end_seq, c.inputs
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NULL
    ),
    made (number, input) AS MATERIALIZED (
        SELECT l.number, i.input FROM log AS l CROSS JOIN LATERAL pg_catalog.unnest(l.inputs) AS i (input)
    ),
    reached (number) AS (
        SELECT l.number FROM log AS l
        WHERE (l.start_seq IS NOT NULL AND pg_catalog.int8range(l.start_seq, l.end_seq, '[]') && p_seqs)
            OR (l.outcome = 'observed' AND compaction_store.told_by(p_thread_uid, l.pos) && p_seqs)
        UNION
        SELECT m.number FROM reached AS r JOIN made AS m ON m.input = r.number
    )
    SELECT COALESCE(pg_catalog.range_agg(pg_catalog.int8range(r.number, r.number, '[]')), '{}') FROM reached AS r
$$;
