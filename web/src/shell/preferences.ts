import { useSyncExternalStore } from 'react';

const watchers = new Set<() => void>();
const subscribe = (watcher: () => void) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};

/** A preference that the browser stores under a name. */
export function usePreference(name: string, otherwise: string): [string, (value: string) => void] {
  const key = `kapelle.${name}`;
  const value = useSyncExternalStore(subscribe, () => localStorage.getItem(key) ?? otherwise);
  const change = (next: string) => {
    localStorage.setItem(key, next);
    for (const watcher of watchers) watcher();
  };
  return [value, change];
}

/** The project that every place is about; undefined for all of them. */
export function useScope(): [string | undefined, (project: string) => void] {
  const [project, choose] = usePreference('project', '');
  return [project || undefined, choose];
}

export function switchTheme(): void {
  const root = document.documentElement;
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  root.dataset.theme = (root.dataset.theme ?? system) === 'dark' ? 'light' : 'dark';
  localStorage.setItem('kapelle.theme', root.dataset.theme);
}
