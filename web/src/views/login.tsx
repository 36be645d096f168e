import { useQueryClient } from '@tanstack/react-query';
import { useLocation, useNavigate, useRouter } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { type ApiError, api, ask } from '../api/client';
import { Problem } from '../parts/controls';
import { keepPath, takeReturnPath } from '../shell/return_path';
import { Mark } from '../shell/sidebar';

let used = '';

/** A code from `kapelle open` becomes a session. */
export function Login() {
  const navigate = useNavigate();
  const { history } = useRouter();
  const queries = useQueryClient();
  const { hash: code, searchStr } = useLocation();
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    document.title = 'Log in · Kapelle';
    if (!code || code === used) return;
    used = code;
    const goal = new URLSearchParams(searchStr).get('to');
    if (goal) keepPath(goal);
    // Neither a bookmark nor the browser's history is to hold it.
    navigate({ to: '/login', replace: true });
    const enter = () => {
      queries.clear();
      history.replace(takeReturnPath());
    };
    // A code that was used before may have been used by this very browser.
    const look = (refused: ApiError) => ask(api.GET('/api/v1/daemon')).then(enter, () => setError(refused));
    ask(api.POST('/api/v1/login', { body: { code } })).then(enter, look);
  }, [code, navigate, queries, history]);
  return (
    <main className="login">
      <div className="panel empty">
        <div className="brand">
          <Mark />
          Kapelle
        </div>
        <h1>This browser is not logged in</h1>
        <p>Run this command on the machine of the daemon. It opens the page with a one-time code.</p>
        <p className="cmd">kapelle open</p>
        <p className="faint">
          <code>kapelle open --print</code> prints the address instead.
        </p>
        <Problem error={error} />
      </div>
    </main>
  );
}
