import tailwindcss from '@tailwindcss/vite';
import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

const daemon = 'http://127.0.0.1:8350';

export default defineConfig({
  plugins: [react(), tailwindcss()],
  build: { target: 'es2023', assetsInlineLimit: 0, modulePreload: { polyfill: false } },
  // `kapelle serve --port 8350`; a write must carry the Origin of the daemon's own page.
  server: {
    proxy: { '/api': { target: daemon, ws: true, changeOrigin: true, headers: { origin: daemon } } },
  },
});
