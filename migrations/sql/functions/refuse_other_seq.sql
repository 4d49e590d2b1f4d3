-- Raises an error if a thread does not end at the expected seq. The client reads the numbers in the error's text.
CREATE FUNCTION compaction_store.refuse_other_seq(p_expected_seq bigint, p_last_seq bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_expected_seq <> p_last_seq THEN
        RAISE EXCEPTION 'expected seq % and found %', p_expected_seq, CASE p_last_seq WHEN 0 THEN 'none' ELSE p_last_seq::text END
            USING ERRCODE = 'CS003', DETAIL = p_last_seq::text;
    END IF;
END
$$;
