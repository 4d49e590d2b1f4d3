-- The records that may repeat what some messages say, whatever became of them, and those that were made from such records.
-- A record may repeat its span. One that has none, or whose inputs have a 0, may repeat anything before it; so may what
-- was observed from its start on, because one of the messages up to the record told of it.
CREATE OR REPLACE FUNCTION compaction_store.reached(p_thread_uid uuid, p_seqs int8multirange) RETURNS int8multirange
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_record record;
    v_of int8range;
    v_found bigint[] := '{}';
    v_numbers bigint[] := '{}';
    v_inputs bigint[] := '{}';
    v_reached int8multirange;
    v_last_number bigint;
BEGIN
    SELECT h.last_number INTO v_last_number FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    FOR v_record IN
        SELECT c.number, c.pos, c.outcome, c.start_seq, c.end_seq, c.inputs
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NULL AND c.number <= v_last_number ORDER BY c.number
    LOOP
        v_of := CASE
            WHEN v_record.start_seq IS NULL OR 0 = ANY (v_record.inputs)
                THEN int8range(1, compaction_store.seq_at(p_thread_uid, v_record.pos), '[]')
            WHEN v_record.outcome = 'observed'
                THEN int8range(v_record.start_seq, compaction_store.seq_at(p_thread_uid, v_record.pos), '[]')
            ELSE int8range(v_record.start_seq, v_record.end_seq, '[]')
        END;
        IF v_of && p_seqs THEN
            v_found := v_found || v_record.number;
        END IF;
        v_numbers := v_numbers || array_fill(v_record.number, ARRAY[cardinality(v_record.inputs)]);
        v_inputs := v_inputs || v_record.inputs;
    END LOOP;
    WITH RECURSIVE reached (number) AS (
        SELECT f.number FROM unnest(v_found) AS f (number)
        UNION
        SELECT m.number FROM reached AS r JOIN unnest(v_numbers, v_inputs) AS m (number, input) ON m.input = r.number
    )
    SELECT coalesce(range_agg(int8range(r.number, r.number, '[]')), '{}') INTO v_reached FROM reached AS r;
    RETURN v_reached;
END
$$;
