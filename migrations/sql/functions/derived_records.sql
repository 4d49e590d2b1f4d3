-- Returns the numbers of the records that may repeat the content of some messages, and of the records that were made
-- from these records, whatever their outcome. A record may repeat its span. A record without a span, or with 0 among
-- its inputs, may repeat anything before it. An observed record may repeat anything from its start up to itself,
-- because one of those messages reported it. A rewind or a clear repeats no message. It is not erased, because the view
-- would then show the hidden messages again.
CREATE FUNCTION compaction_store.derived_records(p_thread_uid uuid, p_seqs int8multirange) RETURNS int8multirange
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last_number bigint;
    v_last_seq bigint;
    v_numbers bigint[];
    v_pos bigint[];
    v_starts bigint[];
    v_ends bigint[];
    v_makers bigint[];
    v_inputs bigint[];
    v_derived int8multirange;
BEGIN
    SELECT h.last_number, h.last_seq INTO v_last_number, v_last_seq
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    -- Read the rows into arrays first, because a statement that Citus sends to a shard cannot call functions that read
    -- tables, such as seq_at.
    SELECT array_agg(c.number), array_agg(c.pos),
        array_agg(CASE WHEN 0 = ANY (c.inputs) THEN 1 ELSE coalesce(c.start_seq, 1) END),
        array_agg(CASE WHEN c.outcome = 'observed' OR 0 = ANY (c.inputs) THEN NULL ELSE c.end_seq END)
    INTO v_numbers, v_pos, v_starts, v_ends
    FROM compaction_store.compactions AS c
    WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NULL AND c.number <= v_last_number
        AND (c.kind NOT IN ('rewind', 'clear') OR c.outcome <> 'applied');
    SELECT array_agg(c.number), array_agg(i.input) INTO v_makers, v_inputs
    FROM compaction_store.compactions AS c CROSS JOIN LATERAL unnest(c.inputs) AS i (input)
    WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NULL AND c.number <= v_last_number;
    WITH RECURSIVE derived (number) AS (
        SELECT r.number
        FROM unnest(v_numbers, v_pos, v_starts, v_ends) AS r (number, pos, first, last)
        CROSS JOIN LATERAL (
            SELECT least(coalesce(r.last, compaction_store.seq_at(p_thread_uid, r.pos)), v_last_seq) AS until
        ) AS s
        -- least() prevents an invalid range for a span that ends after the thread, as a later release could write it.
        WHERE int8range(least(r.first, s.until), s.until, '[]') && p_seqs
        UNION
        SELECT m.maker FROM derived AS r JOIN unnest(v_makers, v_inputs) AS m (maker, input) ON m.input = r.number
    )
    SELECT coalesce(range_agg(int8range(r.number, r.number, '[]')), '{}') INTO v_derived FROM derived AS r;
    RETURN v_derived;
END
$$;
