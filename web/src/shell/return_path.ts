const KEY = 'kapelle.return';
const MAX_AGE_MS = 10 * 60_000;

/** Keep the current address, to come back to it after the login. */
export function keepReturnPath(): void {
  const { pathname, search } = window.location;
  if (pathname !== '/login') keepPath(pathname + search);
}

/** Keep a path to go to after the login. */
export function keepPath(path: string): void {
  localStorage.setItem(KEY, JSON.stringify({ path, at: Date.now() }));
}

/** Remove and return the kept path; `/` if there is none, or an old one, or one of another origin. */
export function takeReturnPath(): string {
  const text = localStorage.getItem(KEY);
  localStorage.removeItem(KEY);
  if (!text) return '/';
  try {
    const { path, at } = JSON.parse(text) as { path: string; at: number };
    const url = new URL(path, window.location.origin);
    const isRecent = Date.now() - at < MAX_AGE_MS;
    if (isRecent && url.origin === window.location.origin) return url.pathname + url.search;
  } catch {
    // Not what this page writes.
  }
  return '/';
}
