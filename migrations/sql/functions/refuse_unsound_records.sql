-- Checks the records of an imported thread. An applied record must match the messages of its span, and the view must
-- contain every message exactly once. The span and the inputs of every record must come before the record.
-- commit_compactions ensures this for the records that it writes, but a chain can be valid without it. Records of
-- unknown kinds are not checked, because views refuse a thread that has one.
CREATE FUNCTION compaction_store.refuse_unsound_records(p_thread_uid uuid) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_number bigint;
BEGIN
    SELECT c.number INTO v_number
    FROM compaction_store.compactions AS c
    LEFT JOIN compaction_store.messages AS b ON b.thread_uid = c.thread_uid AND b.seq = c.start_seq - 1
    LEFT JOIN compaction_store.messages AS m ON m.thread_uid = c.thread_uid AND m.seq = c.end_seq
    LEFT JOIN compaction_store.messages AS n ON n.thread_uid = c.thread_uid AND n.seq = c.end_seq + 1
    LEFT JOIN compaction_store.compactions AS r ON r.thread_uid = c.thread_uid AND r.number = c.revokes
    WHERE c.thread_uid = p_thread_uid AND c.outcome = 'applied'
        AND c.kind IN ('summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption') AND (CASE
        WHEN c.kind = 'revocation' THEN r.outcome = 'applied' AND r.kind <> 'revocation' AND r.number < c.number
            AND r.start_seq = c.start_seq AND r.end_seq = c.end_seq
        ELSE m.pos < c.pos AND c.source_count = c.end_seq - c.start_seq + 1 AND c.source_end = m.entry
            AND c.source_before IS NOT DISTINCT FROM b.entry AND c.tokens_before >= 0 AND c.tokens_after >= 0
            -- A rewind or a clear must reach to the end that the thread had when the record was written.
            AND (c.kind NOT IN ('rewind', 'clear') OR n.pos IS NULL OR n.pos > c.pos)
    END) IS NOT TRUE
    LIMIT 1;
    IF v_number IS NULL THEN
        SELECT c.number INTO v_number
        FROM compaction_store.compactions AS c
        LEFT JOIN compaction_store.messages AS m ON m.thread_uid = c.thread_uid AND m.seq = c.end_seq
        WHERE c.thread_uid = p_thread_uid
            AND c.kind IN ('summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption')
            AND ((m.pos < c.pos) IS NOT TRUE AND c.end_seq IS NOT NULL
                OR (0 <= ALL (c.inputs) AND c.number > ALL (c.inputs)) IS NOT TRUE)
        LIMIT 1;
    END IF;
    IF v_number IS NULL THEN
        -- Read the spans in force in the order of their starts. A span that begins inside an earlier one must end in
        -- it.
        SELECT f.number INTO v_number FROM (
            SELECT c.number, c.start_seq, c.end_seq, max(c.end_seq) OVER (
                ORDER BY c.start_seq, c.end_seq DESC, c.number DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS covered_to
            FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.outcome = 'applied' AND c.revokes IS NULL
                AND c.kind IN ('summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption')
                AND c.redacted_pos IS NULL
                AND NOT EXISTS (
                    SELECT FROM compaction_store.compactions AS r
                    WHERE r.thread_uid = p_thread_uid AND r.revokes = c.number AND r.outcome = 'applied'
                )
        ) AS f
        WHERE f.start_seq <= f.covered_to AND f.end_seq > f.covered_to
        LIMIT 1;
    END IF;
    IF v_number IS NOT NULL THEN
        RAISE EXCEPTION 'compaction % does not match the messages of its span', v_number
            USING ERRCODE = 'CS010', DETAIL = v_number::text;
    END IF;
END
$$;
