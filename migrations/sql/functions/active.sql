-- Returns the active records of a thread at a pos, in order: those in force whose span is not inside the span of
-- another record in force. p_last_number is the last number in the head, as for in_force. The query yields each record
-- before the records inside it, which are skipped. After ten skipped records, the query starts again after the outer
-- record. If a thousand rewinds lie one inside another, it therefore reads only about ten. With p_from and p_to,
-- returns only the records between these two seqs. p_from must be the first seq of an element of the view, and p_to the
-- last seq of one.
CREATE FUNCTION compaction_store.active(
    p_thread_uid uuid, p_at bigint, p_last_number bigint, p_from bigint DEFAULT 1, p_to bigint DEFAULT NULL::bigint
)
RETURNS TABLE (number bigint, start_seq bigint, end_seq bigint, tokens_after bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_next bigint := p_from;
    v_inside integer;
BEGIN
    LOOP
        v_inside := 0;
        FOR number, start_seq, end_seq, tokens_after IN
            SELECT f.number, f.start_seq, f.end_seq, f.tokens_after
            FROM compaction_store.in_force(p_thread_uid, p_at, p_last_number, v_next) AS f
            WHERE p_to IS NULL OR f.start_seq <= p_to
            ORDER BY f.start_seq, f.end_seq DESC, f.number DESC
        LOOP
            IF end_seq < v_next THEN
                v_inside := v_inside + 1;
                EXIT WHEN v_inside = 10;
            ELSE
                RETURN NEXT;
                v_next := end_seq + 1;
                v_inside := 0;
            END IF;
        END LOOP;
        EXIT WHEN v_inside < 10;
    END LOOP;
END
$$;
